"""One module a bench: every number that the README claims comes from here."""
