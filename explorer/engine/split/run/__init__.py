"""Stages that run as a pipeline: processes on this machine, or workers of a Dask cluster."""
