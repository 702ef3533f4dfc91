"""Where clients live elsewhere: on other machines, on devices and in silos."""
