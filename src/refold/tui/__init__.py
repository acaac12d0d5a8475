"""FACE: the full-screen session browser; it is built in a later version."""
