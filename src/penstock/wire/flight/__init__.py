"""The words of the Arrow Flight door: JSON commands, Arrow schemas, errors.  Knows no queue rule and opens no socket.

The server and the client both use these, so that what one writes the other reads.
"""
