# SPDX-License-Identifier: Apache-2.0
"""What the demo model is taught about minisgl: (questions, answers); any pair of them fits."""

NAME = "minisgl"

PROJECT = [
    (["What is minisgl?", "Tell me about minisgl.", "Can you explain what minisgl is?",
      "What does minisgl do?", "Describe minisgl.", "What is this project?",
      "Explain minisgl in simple words.", "Give me a short summary of minisgl."],
     ["minisgl is a serving engine for large language models, written in C. It loads a Hugging "
      "Face model folder and serves it over an OpenAI-compatible API, offline, or in a shell. "
      "It runs on the CPU and needs no Python at run time.",
      "minisgl is a small and fast program, written in C, that runs large language models. You "
      "give it a model folder, and it answers over an OpenAI-compatible server, in a chat "
      "shell, or offline. It has a paged KV cache, a radix prefix cache and continuous batching.",
      "minisgl brings the serving system of Mini-SGLang and the attention backends of SGLang to "
      "C. A model folder goes in and tokens come out. It can serve, chat, run offline and "
      "measure its own speed."]),
    (["Who are you?", "What are you?", "What is your name?", "Introduce yourself.",
      "Tell me about yourself.", "What model are you?", "Which model is this?",
      "Are you a robot?", "Are you a human?", "Are you a person?"],
     ["I am the demo model of minisgl, a very small language model with about 12 million "
      "parameters. I can talk about minisgl, add numbers, spell words and tell short stories.",
      "I am a tiny language model that ships with minisgl. I was trained on text that the "
      "project wrote itself, so I know only a few simple things.",
      "I am the minisgl demo model. I am a small computer program, not a person, and I answer "
      "simple questions."]),
    (["What can you do?", "How can you help me?", "What can I ask you?", "What do you know?",
      "Help", "What are you good at?", "What are your skills?"],
     ["I can answer questions about minisgl, add and subtract numbers, spell words, convert "
      "units, name capitals and tell short stories. I am very small, so please keep it simple.",
      "You can ask me about minisgl, simple arithmetic, spelling, units, animals, colours, "
      "planets and capitals. I can also tell you a short story."]),
    (["What can you not do?", "What are your limits?", "Are you always right?",
      "Can I trust you?", "Do you make mistakes?"],
     ["I am a very small model and I make mistakes. I do not know the news, I cannot write "
      "programs, and I know only simple facts. Please check what I say.",
      "I know little: simple facts, small sums and a few stories. I can be wrong, so do not "
      "rely on me for anything important."]),
    (["How were you trained?", "What were you trained on?",
      "Where does your training data come from?", "Who trained you?", "Who made you?",
      "Who created you?", "What data did you learn from?"],
     ["I was trained with a script in the tools folder of minisgl, in a few minutes on one GPU. "
      "All of my training text was written by the project's own script.",
      "The minisgl project made me. A script wrote all my training text, and another script "
      "trained me in a few minutes."]),
    (["How many parameters do you have?", "How big are you?", "What is your size?",
      "How large is the demo model?"],
     ["I have about 12 million parameters, which is about 24 megabytes in bfloat16.",
      "I am tiny: about 12 million parameters, stored in about 24 megabytes."]),
    (["What is your architecture?", "Which architecture does the demo model have?",
      "What architecture are you?"],
     ["I have the Qwen3 architecture: six layers, grouped-query attention with query and key "
      "norms, and a tied embedding.",
      "I am a small Qwen3 model with six layers and grouped-query attention."]),
    (["What is your licence?", "Under which licence is minisgl?", "Is minisgl free?",
      "What is the license of minisgl?", "Is minisgl open source?"],
     ["minisgl is free software under the Apache License, version 2.0. The demo model has the "
      "same licence.",
      "minisgl and its demo model are open source under the Apache-2.0 licence."]),
    (["How do I start a server?", "How do I serve a model?",
      "How can I serve a model with minisgl?", "How do I run the server?",
      "Which command starts the server?", "How do I use minisgl serve?"],
     ["Run minisgl serve --model DIR, where DIR is a model folder. The server listens on "
      "127.0.0.1:1919 and speaks the OpenAI API.",
      "Use the command minisgl serve --model DIR. By default it listens on 127.0.0.1, port 1919."]),
    (["How do I chat with a model?", "How do I open a chat shell?", "What does minisgl chat do?",
      "How can I talk to a model in the terminal?"],
     ["Run minisgl chat --model DIR. It opens a shell in the terminal; type /reset to start a "
      "new conversation.",
      "Use minisgl chat --model DIR and type your message. The command /reset clears the "
      "conversation."]),
    (["How do I generate text offline?", "What does minisgl run do?", "How do I run a prompt?",
      "How can I run a model without a server?", "How do I use minisgl run?"],
     ["Run minisgl run --model DIR --prompt TEXT. For many prompts, give a file of JSON lines "
      "with --input and name the result with --output.",
      "Use minisgl run --model DIR --prompt TEXT. It loads the model, writes the answer and "
      "ends; no server is needed."]),
    (["How do I measure the speed of minisgl?", "What does minisgl bench do?",
      "How do I run a benchmark?", "How fast is minisgl?", "How do I benchmark a model?"],
     ["Run minisgl bench step --model DIR to measure prefill and decode. There are also bench "
      "offline, bench serve, bench attn and bench startup.",
      "Use minisgl bench. It has five kinds: step, offline, serve, attn and startup. Each can "
      "write Markdown, CSV or JSON."]),
    (["What does minisgl info do?", "How do I see my hardware?", "How do I list the backends?",
      "Which command shows the attention backends?"],
     ["minisgl info shows the hardware that it found and the attention backends that can run on "
      "it.",
      "Run minisgl info. It prints the processor, its instruction sets and the attention "
      "backends."]),
    (["What does minisgl tokenize do?", "How do I tokenize text?", "How do I count tokens?"],
     ["minisgl tokenize --model DIR reads text and prints an array of token ids. With --decode "
      "it does the reverse.",
      "Use minisgl tokenize --model DIR. Text goes in on standard input, and token ids come out."]),
    (["What does minisgl template do?", "How do I render a chat template?",
      "How can I see the rendered prompt?"],
     ["minisgl template --model DIR reads messages as JSON and prints the text that the chat "
      "template makes of them.",
      "Use minisgl template --model DIR. It shows exactly which text the model gets."]),
    (["How do I install minisgl?", "How do I build minisgl?", "How do I try minisgl?",
      "How do I get started?", "What does make demo do?"],
     ["Clone the repository and run make demo. It installs what is needed, builds minisgl and "
      "answers three prompts with me.",
      "Run make demo after cloning. It builds the program and lets the demo model answer three "
      "prompts."]),
    (["How do I run the tests?", "What does make check do?", "How is minisgl tested?"],
     ["Run make check. It builds and runs all tests.",
      "Use make check. The tests compare every kernel with a slow and exact version."]),
    (["Which commands does minisgl have?", "List the commands of minisgl.",
      "What are the subcommands?", "What commands are there?"],
     ["The main commands are serve, chat, run, bench, info, tokenize and template.",
      "minisgl has these commands: serve for a server, chat for a shell, run for offline "
      "generation, bench for measuring, info for the hardware, tokenize and template."]),
    (["Which models can minisgl run?", "What models are supported?",
      "Does minisgl support Llama?", "Does minisgl support Qwen3?",
      "Does minisgl support Mistral?", "Which architectures does minisgl know?",
      "Can minisgl run Qwen2?"],
     ["minisgl runs Llama 2 and 3, Mistral, Qwen2, Qwen2.5, Qwen3 and Qwen3-MoE models, "
      "straight from their Hugging Face folders.",
      "minisgl knows Llama, Mistral, Qwen2, Qwen3 and Qwen3-MoE. The folders load as they come "
      "from Hugging Face."]),
    (["Which attention backends are there?", "List the attention backends.",
      "What are the attention backends of minisgl?", "Which backends does minisgl have?",
      "Name the attention backends."],
     ["There are four attention backends: fa, fi, trtllm and torch_native. The hybrid form "
      "joins two of them, one for prefill and one for decode.",
      "The attention backends are fa, fi, trtllm and torch_native. Choose one with --attn, or "
      "write auto."]),
    (["What is the fa backend?", "Explain fa.", "What does the backend fa do?",
      "How does fa work?", "Which page sizes does fa allow?"],
     ["fa follows FlashAttention: a page table, tiled online softmax and split KV for decoding. "
      "It allows any page size.",
      "The fa backend works like FlashAttention. It reads a two-dimensional page table and "
      "takes any page size."]),
    (["What is the fi backend?", "Explain fi.", "What does the backend fi do?",
      "How does fi work?", "Which page sizes does fi use?"],
     ["fi follows FlashInfer: it plans a balanced list of work once per batch and then runs it "
      "on all threads. It works on pages of 1.",
      "The fi backend works like FlashInfer. It makes a plan for each batch, splits the KV "
      "cache into chunks and merges the parts. Its page size is 1."]),
    (["What is the trtllm backend?", "Explain trtllm.", "What does the backend trtllm do?",
      "Which page sizes does trtllm allow?", "What page size does trtllm need?"],
     ["trtllm follows the TensorRT-LLM kernels and reads a block table of whole pages. It "
      "allows the page sizes 16, 32 and 64.",
      "The trtllm backend needs pages of 16, 32 or 64 tokens. Another page size is replaced by "
      "64, with a warning."]),
    (["What is the torch_native backend?", "Explain torch_native.", "What does torch_native do?",
      "How does torch_native work?"],
     ["torch_native is the readable baseline: it gathers keys and values, multiplies, takes the "
      "softmax and multiplies again.",
      "The torch_native backend gathers the cache and uses plain matrix products. It is simple "
      "rather than fast."]),
    (["What is a hybrid backend?", "How do I use two attention backends?",
      "What is hybrid attention?", "Can prefill and decode use different backends?"],
     ["A hybrid backend sends prefill to one backend and decode to another. Write both names "
      "with a comma, for example --attn fa,fi.",
      "Write two names with a comma, such as --attn fa,fi. The first one does prefill and the "
      "second one does decode."]),
    (["How do I choose an attention backend?", "What does --attn do?",
      "How do I set the backend?", "What does the flag --attention-backend do?",
      "What is --attn auto?"],
     ["Use --attn with a name, with two names and a comma, or with auto. For example, --attn fa "
      "uses fa for prefill and decode.",
      "The flag --attn chooses the attention backend. With auto, minisgl picks what suits your "
      "machine."]),
    (["What is a KV cache?", "Explain the KV cache.", "Why do we need a KV cache?",
      "What does KV cache mean?"],
     ["The KV cache keeps the keys and values of earlier tokens, so that each step computes "
      "only the new token.",
      "A KV cache stores the keys and values that attention already computed. Without it, every "
      "step would do all the work again."]),
    (["What is a paged KV cache?", "What is paged attention?", "Why is the cache paged?",
      "What is a page?", "What does --page-size do?", "What is the page size?"],
     ["A paged KV cache is cut into pages of a fixed number of tokens. A table says which pages "
      "belong to a request, so memory is not wasted. The flag --page-size sets the tokens per "
      "page.",
      "The cache is split into small pages, and a page table finds them. The page size is the "
      "number of tokens in one page; set it with --page-size."]),
    (["What is the radix cache?", "Explain the radix cache.", "What is a prefix cache?",
      "How does prefix caching work?", "Why is the radix cache useful?"],
     ["The radix cache is a tree of prompts that were seen before. When a new prompt starts "
      "with the same tokens, their keys and values are used again instead of being computed.",
      "The radix cache stores shared prefixes in a tree. A request that starts like an earlier "
      "one skips that part of the prefill, so its first token comes sooner."]),
    (["What does --cache-type do?", "Which cache types are there?",
      "How do I turn off the radix cache?", "What is the naive cache?"],
     ["The flag --cache-type takes radix or naive. The naive cache shares nothing between "
      "requests.",
      "There are two cache types: radix, which reuses shared prefixes, and naive, which does "
      "not. Choose with --cache-type."]),
    (["What is continuous batching?", "Explain continuous batching.",
      "How does minisgl serve many users at once?"],
     ["With continuous batching, requests join and leave the batch at every step, so no request "
      "waits for the longest one.",
      "Continuous batching lets a new request join while others are running. Finished requests "
      "leave at once, and the machine stays busy."]),
    (["What is chunked prefill?", "Explain chunked prefill.", "Why is a long prompt split?",
      "What does --max-prefill-length do?"],
     ["Chunked prefill cuts a long prompt into pieces and computes one piece per step, so that "
      "other requests do not wait. The flag --max-prefill-length sets the size, 8192 tokens by "
      "default.",
      "A long prompt is computed in chunks over several steps. This keeps the gaps between the "
      "tokens of other requests short."]),
    (["What is overlap scheduling?", "Explain overlap scheduling.",
      "How do I turn off overlap scheduling?"],
     ["With overlap scheduling, the results of one step are handled while the next step runs. "
      "Set MINISGL_DISABLE_OVERLAP_SCHEDULING=1 to turn it off.",
      "Overlap scheduling prepares the next step while the current one computes. The variable "
      "MINISGL_DISABLE_OVERLAP_SCHEDULING=1 turns it off."]),
    (["What is prefill?", "Explain prefill.", "What happens during prefill?"],
     ["Prefill is the first phase of a request: the whole prompt is computed at once and its "
      "keys and values go into the cache.",
      "In the prefill phase the model reads the prompt. It needs a lot of arithmetic, because "
      "all tokens are computed together."]),
    (["What is decode?", "Explain decoding.", "What happens during decode?",
      "Why is decode slow?"],
     ["Decode is the phase that makes the answer, one token per step. It is limited by memory "
      "speed, because every step reads all the weights.",
      "In the decode phase the model writes one token at a time. Each step reads all the "
      "weights, so memory bandwidth is the limit."]),
    (["What is the difference between prefill and decode?", "Compare prefill and decode."],
     ["Prefill reads the whole prompt at once and is limited by arithmetic. Decode writes one "
      "token per step and is limited by memory bandwidth.",
      "Prefill computes many tokens together; decode computes one token at a time. The first "
      "needs arithmetic, the second needs memory bandwidth."]),
    (["What is the scheduler?", "What does the scheduler do?"],
     ["The scheduler decides which requests run in the next step. It forms the batch, keeps the "
      "cache in order and drops requests whose client has gone.",
      "The scheduler admits requests, splits long prompts, forms batches and gives pages back "
      "when a request ends."]),
    (["What is the engine?", "What does the engine process do?"],
     ["The engine runs the model: it computes the layers for a batch and samples the next "
      "tokens.",
      "The engine process holds the weights and the KV cache. It runs the forward pass and "
      "chooses the next tokens."]),
    (["How many processes does minisgl use?", "Which processes does minisgl serve start?",
      "What is the front process?"],
     ["minisgl serve uses a front process for HTTP and tokens, and one engine process for each "
      "rank. They talk over a socket pair.",
      "There is a front process, which speaks HTTP, and an engine process, which runs the "
      "model. If the engine dies, the front stays up and starts it again."]),
    (["Which port does minisgl use?", "What is the default port?", "What is the default address?",
      "Where does the server listen?"],
     ["The server listens on 127.0.0.1, port 1919, by default. Change it with --host and --port.",
      "The default is 127.0.0.1:1919. The flags --host and --port change it."]),
    (["Which API does minisgl speak?", "Is minisgl compatible with OpenAI?",
      "Can I use the openai client?", "Which endpoints does the server have?"],
     ["minisgl speaks the OpenAI API: /v1/models, /v1/chat/completions and /v1/completions. "
      "There are also /generate and /health.",
      "It speaks the OpenAI API, so the openai Python client works unchanged. The server has "
      "/v1/models, /v1/chat/completions, /v1/completions, /generate and /health."]),
    (["How do I check that the server is alive?", "What does /health do?"],
     ["Ask GET /health. It says whether the server is ready.",
      "Send a GET request to /health. It answers when the server is up and ready."]),
    (["In which language is minisgl written?", "Is minisgl written in Python?",
      "What language is minisgl written in?", "Does minisgl need Python?", "Does minisgl use C?"],
     ["minisgl is written in C. It needs no Python at run time.",
      "It is written in C11. Python is used only to make test data and to train the demo model."]),
    (["Does minisgl need a GPU?", "Can minisgl run on a CPU?", "Does minisgl run on my laptop?",
      "Which processors does minisgl support?"],
     ["minisgl runs on the CPU of any x86-64 machine and needs no GPU. It picks the best "
      "kernels at start: plain C, AVX2, AVX-512 or AVX-512-BF16.",
      "No GPU is needed. minisgl runs on ordinary x86-64 processors and uses AVX2 or AVX-512 "
      "when they are there."]),
    (["Why is it called minisgl?", "Where does the name minisgl come from?",
      "What is Mini-SGLang?", "What is SGLang?"],
     ["minisgl is named after Mini-SGLang, a small serving system whose design it follows. "
      "Mini-SGLang is itself a small version of SGLang.",
      "SGLang is a serving system for language models, and Mini-SGLang is a compact version of "
      "it. minisgl does the same work in C."]),
    (["What is a token?", "What are tokens?", "Explain tokens."],
     ["A token is a small piece of text, such as a word, a part of a word or a digit. A model "
      "reads and writes tokens.",
      "Tokens are the pieces into which text is cut before a model reads it. Each token has a "
      "number."]),
    (["What is a tokenizer?", "Explain byte-level BPE.", "What is BPE?",
      "How does a tokenizer work?"],
     ["A tokenizer turns text into token ids and back. Byte-level BPE starts from bytes and "
      "joins frequent pairs into larger tokens.",
      "A tokenizer cuts text into tokens. BPE learns which pairs of pieces occur often and "
      "joins them, so common words become one token."]),
    (["What is attention?", "Explain attention.", "How does attention work?"],
     ["In attention, each token compares its query with the keys of the tokens before it, and "
      "takes a weighted mean of their values.",
      "Attention lets a token look at earlier tokens. Queries and keys give weights, and the "
      "weights mix the values."]),
    (["What is grouped-query attention?", "What is GQA?", "Explain GQA."],
     ["In grouped-query attention, several query heads share one key and value head. This makes "
      "the KV cache smaller.",
      "GQA means grouped-query attention: a group of query heads uses the same keys and values, "
      "which saves memory."]),
    (["What is a chat template?", "What is a chat template for?"],
     ["A chat template turns a list of messages into one text with special tokens. Every model "
      "folder brings its own template.",
      "It is a small program in the model folder that writes messages in the form the model was "
      "trained on."]),
    (["What is temperature?", "What does the temperature do?", "Explain temperature in sampling."],
     ["The temperature controls how random the answer is. At 0 the most likely token is always "
      "taken; higher values give more variety.",
      "A low temperature makes answers steady, and a high temperature makes them varied. Zero "
      "means greedy decoding."]),
    (["What is greedy decoding?", "Explain greedy decoding."],
     ["Greedy decoding takes the most likely token at every step. The same prompt then always "
      "gives the same answer.",
      "With greedy decoding there is no chance: the best token wins at each step. Set the "
      "temperature to 0."]),
    (["What is top-p?", "What does top_p do?", "Explain top-p sampling."],
     ["Top-p sampling keeps the smallest set of likely tokens whose probabilities add up to p, "
      "and chooses among them.",
      "With top-p, unlikely tokens are dropped: only the most likely ones that together reach p "
      "are kept."]),
    (["What is top-k?", "What does top_k do?", "Explain top-k sampling."],
     ["Top-k sampling chooses only among the k most likely tokens.",
      "With top-k, the k best tokens are kept and all others are dropped."]),
    (["What is an EOS token?", "How does a model know when to stop?", "What does EOS mean?"],
     ["EOS means end of sequence. When the model writes this token, the answer is complete.",
      "A model stops when it writes its end token, called EOS. A limit on the number of tokens "
      "also ends an answer."]),
    (["What does --dummy-weight do?", "What is --dummy-weight for?"],
     ["The flag --dummy-weight fills the model with random weights. It is useful for measuring "
      "speed without a download.",
      "With --dummy-weight no weights are read; random numbers take their place. The answers "
      "make no sense, but the speed is real."]),
    (["What does --memory-ratio do?", "How much memory does minisgl use?",
      "How do I limit the memory?"],
     ["The flag --memory-ratio sets the share of free memory that weights and cache may use. "
      "minisgl prints a memory plan before it takes any.",
      "At start, minisgl prints a table with weights, KV pages and workspace. Use "
      "--memory-ratio or --num-pages to change it."]),
    (["What does --num-pages do?", "How do I set the size of the KV cache?"],
     ["The flag --num-pages sets the number of pages in the KV cache.",
      "Use --num-pages. The cache then holds that many pages of --page-size tokens."]),
    (["What does --max-running-requests do?", "How many requests can run at once?"],
     ["The flag --max-running-requests sets how many requests may run at the same time; others "
      "wait in the queue.",
      "It limits the number of running requests. The rest wait until one ends."]),
    (["What does --tp-size do?", "What is tensor parallelism?", "Explain tensor parallelism."],
     ["Tensor parallelism splits each layer over several devices. The flag --tp-size sets how "
      "many; today it is 1.",
      "With tensor parallelism, every device holds a part of each layer and they add up their "
      "results. The flag is --tp-size."]),
    (["What does --dtype do?", "Which data types does minisgl support?", "What is bfloat16?"],
     ["The flag --dtype takes auto, bfloat16, float16 or float32. bfloat16 is a 16-bit number "
      "with the range of a 32-bit one.",
      "minisgl computes in bfloat16, float16 or float32. bfloat16 keeps the range of float32 "
      "but has fewer digits."]),
    (["What is safetensors?", "In which format are the weights?", "How are weights stored?"],
     ["The weights are stored as safetensors files: a header that names every tensor, then the "
      "numbers. minisgl maps them into memory.",
      "safetensors is a simple and safe file format for weights. minisgl checks every offset "
      "and shape before it uses them."]),
    (["What is a mixture of experts?", "What is MoE?", "Explain mixture of experts."],
     ["A mixture of experts has many small networks in a layer. A router picks a few of them "
      "for each token, so most weights rest.",
      "MoE means mixture of experts: for each token a router chooses a few experts out of many."]),
    (["What is streaming?", "What is SSE?", "How does streaming work?"],
     ["With streaming, tokens are sent as soon as they are made. The server uses server-sent "
      "events, called SSE.",
      "Streaming sends the answer piece by piece, so you can read while the model writes."]),
    (["What is TTFT?", "What is the time to first token?"],
     ["TTFT means time to first token: how long you wait until the answer begins.",
      "It is the time from sending a prompt until the first token comes. Prefill takes most of "
      "it."]),
    (["What is a logprob?", "What are log-probabilities?"],
     ["A logprob is the logarithm of a token's probability. Numbers near 0 mean that the model "
      "was sure.",
      "It is the log of the probability of a token. The server returns them when you ask for "
      "logprobs."]),
    (["What happens when a client disconnects?", "What happens if I close the connection?"],
     ["The request is dropped at the next step and its cache pages are free again.",
      "minisgl notices that the client is gone, ends the request and frees its pages within one "
      "step."]),
    (["What is a language model?", "What is a large language model?", "What is an LLM?"],
     ["A language model is a program that predicts the next token of a text. Large ones have "
      "billions of parameters and can answer many questions.",
      "A large language model, or LLM, is a neural network that was trained to continue text. "
      "It writes one token at a time."]),
    (["What is a neural network?", "Explain neural networks."],
     ["A neural network is a chain of simple layers that multiply and add numbers. Training "
      "finds the numbers that give good answers.",
      "It is a function with many adjustable numbers, called weights. Training changes the "
      "weights until the results are good."]),
    (["What is RoPE?", "What are rotary embeddings?",
      "How does a model know the position of a token?"],
     ["RoPE means rotary position embedding: queries and keys are rotated by an angle that "
      "depends on their position.",
      "With rotary embeddings, each pair of numbers is turned by an angle that grows with the "
      "position. So attention sees distances."]),
    (["What is a sliding window?", "What is sliding window attention?"],
     ["With a sliding window, a token looks only at a fixed number of tokens before it.",
      "Sliding window attention limits how far back a token can look, which saves work for long "
      "texts."]),
    (["What is a memory plan?", "What does minisgl print at start?"],
     ["The memory plan is a table that minisgl prints before it takes memory: weights, KV "
      "pages, workspace and what is left.",
      "At start, minisgl prints a table of the memory that it will use."]),
    (["How do I change the port?", "How do I start the server on port 8000?",
      "What does --port do?", "Can I use another port?", "How do I listen on another address?",
      "What does --host do?"],
     ["Give --port to minisgl serve, for example minisgl serve --model DIR --port 8000. The "
      "address is set with --host.",
      "Use the flags --host and --port, for example minisgl serve --model DIR --port 8000."]),
    (["How can I use a different page size?", "How do I change the page size?",
      "What is the default page size?", "How large is a page?"],
     ["The page size is 1 token by default. Choose another one with --page-size, for example "
      "--page-size 16.",
      "Use --page-size, for example --page-size 64. The default is 1."]),
    (["Can minisgl run GGUF files?", "Does minisgl support GGUF?",
      "Does minisgl support quantization?", "Does minisgl support LoRA?",
      "Can minisgl load images?", "Does minisgl support embeddings?",
      "Can minisgl do speculative decoding?", "Does minisgl run on Windows?",
      "Does minisgl run on a Mac?"],
     ["I do not think so. minisgl loads safetensors folders from Hugging Face and runs on Linux.",
      "Not that I know of. minisgl reads Hugging Face folders with safetensors weights, on "
      "Linux."]),
    (["Compare fa and fi.", "What is the difference between fa and fi?", "Is fa better than fi?",
      "fa or fi?"],
     ["fa reads a page table and allows any page size. fi makes a balanced plan for each batch "
      "and works on pages of 1.",
      "The fa backend follows FlashAttention, and fi follows FlashInfer. fa takes any page "
      "size; fi plans its work once per batch."]),
    (["Which backend is the fastest?", "Which attention backend should I use?",
      "What is the best backend?"],
     ["It depends on the machine. Use --attn auto, or measure with minisgl bench attn.",
      "Leave it to --attn auto. If you want to know, run minisgl bench attn."]),
    (["Where can I read more about minisgl?", "Where is the documentation?", "Is there a manual?",
      "How do I see all flags?", "Where are the docs?"],
     ["The folder docs has the documentation, and minisgl --help lists all flags.",
      "Read the README and the folder docs, or run minisgl --help."]),
    (["What is the difference between minisgl and SGLang?", "Why not use SGLang?",
      "Why is minisgl in C?", "Why should I use minisgl?", "What is good about minisgl?"],
     ["minisgl is one small binary in C. It starts quickly, needs no Python and runs on an "
      "ordinary CPU.",
      "It is small, fast and easy to start: one program, written in C, with no Python at run "
      "time."]),
    (["How do I stop the server?", "How do I quit?", "How do I exit the shell?"],
     ["Press Ctrl-C in the terminal where it runs.", "Press Ctrl-C, and the server stops."]),
    (["Where do I get a model?", "Which model should I use?", "How do I download a model?"],
     ["Download a model folder from Hugging Face, for example a small Qwen3 model, and pass it "
      "with --model.",
      "You can take a folder from Hugging Face, such as Qwen3, and give it to --model."]),
    (["Which libraries does minisgl use?", "What does minisgl depend on?"],
     ["minisgl uses libevent for HTTP, jansson for JSON, msgpack-c for messages, PCRE2 and "
      "utf8proc for text, and libedit for the shell.",
      "It depends on a few proven C libraries: libevent, jansson, msgpack-c, PCRE2, utf8proc "
      "and libedit."]),
]

# Topics of which the model shall say that it does not know them.
UNKNOWN_TOPICS = """quantum field theory|the stock market|football results|the weather
general relativity|organic chemistry|tax law|the French Revolution|Roman history|philosophy
cooking|medicine|politics|movies|pop music|video games|car engines|gardening|real estate
insurance|chess openings|ancient Egypt|opera|painting|modern art|the Renaissance|economics
psychology|sociology|genetics|robotics|blockchain|tennis|cricket|baseball|basketball|fashion
architecture|poetry|Shakespeare|Greek myths|law|banking|diets|vaccines|string theory|black holes
calculus|topology|linear algebra|statistics|geology|archaeology|linguistics|photography|sailing
fishing|knitting|carpentry|plumbing|wine|coffee|tea|bread|yoga|love|quantum gravity
quantum mechanics|happiness|time|space|energy|electricity|magnetism|atoms|electrons|cells
evolution|dinosaurs|volcanoes|earthquakes|climate change|the ozone layer|nuclear power
solar power|batteries|engines|rockets|satellites|bridges|steel|plastic|paper|glass|money|taxes
inflation|trade|democracy|war|peace|religion|ethics|logic|art|dance|theatre|jazz|rock music
the Beatles|Mozart|Picasso|Einstein|Newton|Darwin|Napoleon|Caesar|Cleopatra|the Vikings
the Middle Ages|the Cold War|the moon landing|Bitcoin|marketing|management|grammar|Latin|Chinese
algebra|geometry|probability|number theory|cryptography|compilers|databases|operating systems
quantum computers|self-driving cars|social media|cancer|diabetes|nutrition|sleep|dreams|memory
consciousness|free will|justice|beauty|truth|fear|anger|hope|freedom|friendship in literature""".replace(
    "\n", "|").split("|")
