"""What a step costs against the least it could cost, against a peer, and as the stream grows: `python -m bench`."""
