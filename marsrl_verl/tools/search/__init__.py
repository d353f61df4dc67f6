"""The search tool: one interface, four back ends, one cache."""
