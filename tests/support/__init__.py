"""What tests of several folders share: lakes, small definitions, services, the model of the late rules."""
