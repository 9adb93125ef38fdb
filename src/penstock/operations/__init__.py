"""What can be administered: each act once, with its typed arguments, the right it asks for, and what carries it out.

    operation      one row of the table: name, right, arguments, function, and where users find it
    house          what the functions work on
    policies, people, vhosts, queues, topology, connections      the acts, by noun
    table          all of them

Doors are derived from the table: Flight's actions as they stand, HTTP's paths by way of RabbitMQ's shapes.  Arguments
and answers are plain values.  Functions know no door.
"""
