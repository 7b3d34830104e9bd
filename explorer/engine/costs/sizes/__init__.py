"""Computes curves of a model's figures over one of its sizes: closed forms and crossings."""
