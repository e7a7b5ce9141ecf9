"""streamrl's Arrow replay queue: schemas, segments, ledger, index. A part of streamrl.
Its folders import `streamrl`, and each other from the upper floors to the lower ones.
No torch and no Ray.
"""

if __name__ == "buffers":
    from streamrl.system.former_names import give_way

    give_way(__name__)
