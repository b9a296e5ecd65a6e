"""What surrounds a program: logs, masking, CPU allotment, waiting times, metrics."""
