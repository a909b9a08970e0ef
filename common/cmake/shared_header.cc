// The one source of a target that makes a precompiled header (espalier_make_header).
