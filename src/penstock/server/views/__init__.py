"""Views in the server: who tells them what happens, off the critical path, and who reads them."""
