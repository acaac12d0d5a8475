"""FACE: the chat: a person at a terminal talks with a session, steers it, and is asked before commands run.

The chat is started by `refold chat` (refold.cli.chat), which hands over how sessions are opened; everything drawn here
comes from a session's events. `Conversation` decides; a `Surface`, which is a `Screen` or `Plain` lines, shows.
"""
