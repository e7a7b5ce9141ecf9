"""streamrl's running system: Ray actors, launch, command line. A part of streamrl, not a package of its own.
Its folders import `streamrl.buffers` and `streamrl`, and each other from the upper floors to the lower ones.
No algorithm and no decision that needs no I/O: these are pure classes of the two others.
"""

if __name__ == "services":
    from streamrl.system.former_names import give_way

    give_way(__name__)
