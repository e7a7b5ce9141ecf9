"""Modules of tasks, as a user of streamrl has them: the runs of the study find them on their PYTHONPATH.

They import streamrl and what they are made of. Nothing else of the study.
"""
