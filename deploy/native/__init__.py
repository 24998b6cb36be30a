"""The native runtime: a servo and an inference engine in C++, built by one command.

    robotrl build native                          g++ compiles `src/` into the user's cache; nothing else is needed
    robotrl deploy BUNDLE --runtime native        the same run, with the C++ servo and the C++ engine

The way of the data is that of the Python runtime, and every seam between processes stays: the robot's link, the link to
the process that infers, the ring of records, orders and summaries are the same bytes in shared memory. Robots,
supervisor, log, replay and reports know one runtime or the other by a word in the log's header alone.

    robot (Python driver) ──observations──► C++ servo ──requests──► process that infers
            ▲                                │  ▲                        │  C++ engine, by ctypes:
            └───────────commands─────────────┘  └────────chunks──────────┘  a tape of the bundle's graph
                                             └─records──► supervisor (Python): log, report, replay

Engine: `onnx_graph` reads the bundle's graph, `lowering` turns it into a `tape` of loops over numbers, and `session`
runs it in the place of onnxruntime. A tape is data, checked before it runs: one build serves every bundle, and no code
is made from what a bundle says. A graph with an operator that has no loop runs on onnxruntime, with a warning.

Servo: `settings` writes what Python knows of bundle, robot and site into one flat block, which `src/settings.cpp`
checks and reads. `src/servo.cpp` is the loop of `robotrl.deploy.servo.loop`, `src/safety.cpp` the chain of
`robotrl.deploy.control.safety`, bit for bit. The words of a fault are made in Python from the facts that either servo
reports.
"""
