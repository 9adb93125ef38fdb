"""Doors that are processes of their own: the way between them and the server, and who looks after them."""
