"""What a job is: request and options, the job itself, its encoding, decoding and stored form. No I/O."""
