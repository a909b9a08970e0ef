// Has the precompiled header of LibTorch that all targets share (EspalierTargets.cmake).
