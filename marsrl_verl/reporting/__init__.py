"""Everything that a run leaves behind and shows: its folder, live progress, tables, pictures, the report."""
