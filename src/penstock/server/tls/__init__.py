"""TLS at the doors: the certificate and who looks after it, handshakes, what a client has shown."""
