"""Curves of what a model costs while one of its sizes grows: closed forms, and where they cross."""
