"""The values between the stages: kernels, Schedule, Plan."""
