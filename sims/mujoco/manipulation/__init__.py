"""Tasks of the arm with things on a table: `reach`, `push` and `pick_place`, each with a scripted expert beside it."""
