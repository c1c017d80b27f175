"""A job's description: its schema, how it is read and written as form, YAML and JSON, and the rules of its states."""
