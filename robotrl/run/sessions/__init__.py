"""Sessions of a run: the record of the present or last one, the state that follows from it, and pauses."""
