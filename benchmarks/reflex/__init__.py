"""Violations of a contact-force limit with a reflex at the rate of a servo, and at that of the policy."""
