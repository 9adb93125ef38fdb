"""What can be administered: each act once, with its typed arguments, the right it asks for, and what carries it out.

    operation      one row of the table: name, right, arguments, function, and where users find it
    house          what the functions work on
    story, moving  what takes longer: the life of a message from the log, and moving many
    queues, messages, topology, people, vhosts, server      the acts, by noun
    acts           all of them

Doors are derived from the table: Flight's actions as they stand, HTTP's paths as the rows
say, or by way of RabbitMQ's shapes.  Arguments and answers are plain values.  Functions know no door.
"""
