"""FACE: the gateway that gives any Responses provider the compaction it lacks; it is built in a later version."""
