"""A precision plan as a pass within torch's own compiler (:func:`options.inductor_pass`)."""
