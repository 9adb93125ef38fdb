"""Queues over several sites: pure rules of who may lease what, and of what travels between sites."""
