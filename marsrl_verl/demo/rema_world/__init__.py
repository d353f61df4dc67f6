"""The tiny world in which a plan helps: values that are defined by each other, to be found in the right
order."""
