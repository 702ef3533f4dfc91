"""Write a deployment over Flower, check it, and look after its nodes."""
