"""Links to other sites: what happens here is told there, and what is told here is heard; the rules are the core's.

links         all of one server: who this site is, who may be asked for messages, how far the log is needed
sending       one link to another site: its thread reads the log, tells it, and hears how far it was heard
calling       the connection of such a link: Flight's client, logins, TLS, and errors as our own
receiving     one link from another site: a call on the Flight door
"""
