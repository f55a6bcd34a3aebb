"""Finished runs in, tables and plots out. Knows run folders only: no torch, no configuration objects, no
training code.
"""
