"""Problems as they stand in files: what training takes, and what the preparation of data starts from."""
