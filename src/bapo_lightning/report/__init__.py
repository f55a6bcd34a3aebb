"""Tables and plots of finished runs. Reads run folders only: no torch, no configuration objects, no training
code.
"""
