"""Before login: who may come in, how many, how long and with how much; descriptors that no client gets."""
