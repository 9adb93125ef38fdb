"""Settings: the file, the environment, and the arguments of AMQP clients, all turned into plain frozen values.

Owns names, defaults, units, ranges and which settings exclude each other.  Knows no queue rule and no disk beyond the
settings file it is asked to read.  `config.queue_arguments` and `config.queue_settings` import no
pydantic: sessions use them.
"""
