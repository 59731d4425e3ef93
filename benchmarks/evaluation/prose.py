"""What the page says in words."""

INTRODUCTION = """\
# The Campo paper's evaluation, ours

Figures 4 to 10 of section 7 of the paper (USENIX ATC'22), on its six models, with every strategy.
Written by `benchmarks/campo_eval.py`; numbers and pictures are made anew from its records. DCGAN trains
by two steps, and has two rows.

Predictions and measurements are never in one table, and say how they were got.

- `fp32`: the graph as exported. `tf-amp tf115`: TensorFlow 1.15's lists and rules, the paper's baseline
  TF_AMP; `tf-amp tf2`: with TensorFlow 2's lists; `tf-amp campo`: with ours, to tell lists and costs apart.
  `torch-amp`, `nvidia-amp`: PyTorch's and NVIDIA's rules. `fine-grained`: FP16 unless FP32 wins by 1 ms on
  the node. `campo`: the paper's four traverses. `optimal`: the exact assignment, the default of
  `campo-onnx optimize`.
- `campo`, `optimal` and `fine-grained` plan with the lists `campo`, which know that the pieces of a
  decomposed normalization or softmax belong together.
- Graphs: `benchmarks/zoo`, with weight update (momentum; Adam for DCGAN, AdamW for BERT-large) and loss
  scale, at the paper's batch sizes: on the RTX 2080 Ti 256 for AlexNet and 64 for the others, on the V100
  10 for BERT-large and 256 for the others; on the H200 as on the V100.
- The paper's graphs are TensorFlow's, whose operators are coarser: a normalization and its gradient, two
  nodes there, are many here.
"""

TENSOR_CORES = """\
Predicted share of the step that FP16 nodes spend on tensor cores. FP32 products that run there as TF32
(H200) do not count. A product that becomes faster lowers the share as well: where two strategies put the
same products on tensor cores, the one with the shorter step has the higher share.
"""

BREAKDOWN = """\
What is saved of TF_AMP's step: with padding off, and what padding adds. (a) is the RTX 2080 Ti, (b) the
V100; the paper has no H200.
"""

FIGURE_9_PREDICTED = """\
### Figure 9: accuracy of predictions

Needs measurements; see below.
"""

FIGURE_10_PREDICTED = """\
### Figure 10: energy

Not predicted: the cost tables know nothing of power.
"""

CPU_NOTICE = """\
**These figures tell nothing about a GPU.** They show that the whole line works: graphs are exported,
planned, rewritten, loaded and stepped in turns. ONNX Runtime's CPU provider has few FP16 kernels; most
FP16 nodes run in FP32 there.
"""

NODES = """\
Single nodes, timed alone, against what planning counts with on this device. M_A is Eq. 3: one minus the
mean relative error; it has no lower end. The weight gradient of a convolution is a matrix product in these
graphs, the gradient of its data a transposed convolution.
"""

PEERS = """\
Each in an environment of its own, with its defaults but for inputs and outputs, which are to keep their
types. All of them are made for inference. The loss and the weight update of a training step have to stay
FP32 (`campo_onnx/optimize/safety.py` finds their nodes). The step is predicted with every node in the
precision it was given, and every Cast; that of a graph whose types contradict each other is not predicted.
It may be shorter than that of any plan of ours: nothing keeps them from putting loss, update and what the
lists hold to be unsafe into FP16. The next section shows the price.
"""

UPDATES = """\
Small variants, one step on made-up values, emulated on the CPU (FP32 arithmetic, every FP16 tensor
rounded). Relative error of a parameter's update against FP32's: median over the parameters, the worst in
brackets. The loss scale comes down from 2^15 until gradients are finite, as dynamic loss scaling does; 1e+00
is an update that is lost, or a step that is skipped at every scale. Every strategy here leaves the update in
FP32; the other converters do not.
"""

ACCOUNT = """\
The verdict is on the strategy `campo`, on predictions alone: "yes" where the direction is the paper's for
every model, "on average" where only the mean has it, "no" otherwise. How near the sizes are, the figures
tell.
"""
