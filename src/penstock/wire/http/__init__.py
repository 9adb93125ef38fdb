"""HTTP's own: requests read strictly, the table of paths, answers and lists, server-sent events.

It knows neither queue rules nor the server that answers; paths and what carries them out are in `server.http`.
"""
