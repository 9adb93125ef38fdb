"""Queues with priorities: ranks, their order, and the lists of filters in that order."""
