"""What the door for clients decides, without a socket, an engine or Ray: who may, what is asked, what is said."""
