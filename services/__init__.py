"""streamrl's running system: Ray actors, launch, command line. Part of streamrl, not a package of its own."""
