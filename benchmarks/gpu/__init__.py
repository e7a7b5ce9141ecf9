"""The parts of `bench_gpu.py`: each runs in a process of its own, and prints its figures as lines of JSON.

They import streamrl and nothing of each other but `rows` and `shapes`. No part needs the network.
"""
