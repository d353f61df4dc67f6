"""A toy task in which a plan helps: letters that stand on each other, to be added in the right
order."""
