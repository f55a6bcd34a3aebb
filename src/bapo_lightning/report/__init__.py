"""Tables and plots of finished runs. Reads only run folders: no torch, no configuration objects, no training
code.
"""
