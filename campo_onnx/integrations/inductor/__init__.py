"""A precision plan as a pass within torch's own compiler (:func:`graph_pass.inductor_pass`)."""
