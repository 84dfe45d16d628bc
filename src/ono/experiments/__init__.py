"""Measurements that are made by one command."""
