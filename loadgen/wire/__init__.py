"""See the files of this room; each opens with what it knows and what it must not know."""
