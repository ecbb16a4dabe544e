/* What TeX's commands stand for, as far as a model's formulas use them. */

const words = (text) => text.trim().split(/\s+/);
const pairs = (text) => Object.fromEntries(words(text).map((pair) => pair.split("=")));

/** Letters: identifiers of one character. */
export const LETTERS = pairs(`
  alpha=α beta=β gamma=γ delta=δ epsilon=ϵ varepsilon=ε zeta=ζ eta=η theta=θ vartheta=ϑ iota=ι kappa=κ lambda=λ mu=μ nu=ν
  xi=ξ pi=π varpi=ϖ rho=ρ varrho=ϱ sigma=σ varsigma=ς tau=τ upsilon=υ phi=ϕ varphi=φ chi=χ psi=ψ omega=ω Gamma=Γ Delta=Δ
  Theta=Θ Lambda=Λ Xi=Ξ Pi=Π Sigma=Σ Upsilon=Υ Phi=Φ Psi=Ψ Omega=Ω infty=∞ partial=∂ nabla=∇ hbar=ℏ ell=ℓ Re=ℜ Im=ℑ
  aleph=ℵ emptyset=∅ varnothing=∅ top=⊤ bot=⊥ angle=∠ degree=°
`);

/** Operators, relations, arrows and points. */
export const OPERATORS = pairs(`
  pm=± mp=∓ times=× div=÷ cdot=⋅ ast=∗ star=⋆ circ=∘ bullet=∙ oplus=⊕ ominus=⊖ otimes=⊗ odot=⊙ cap=∩ cup=∪ setminus=∖
  wedge=∧ land=∧ vee=∨ lor=∨ neg=¬ lnot=¬ le=≤ leq=≤ ge=≥ geq=≥ ll=≪ gg=≫ ne=≠ neq=≠ equiv=≡ approx=≈ sim=∼ simeq=≃
  cong=≅ propto=∝ in=∈ notin=∉ ni=∋ subset=⊂ subseteq=⊆ supset=⊃ supseteq=⊇ mid=∣ parallel=∥ perp=⊥ forall=∀ exists=∃
  to=→ rightarrow=→ leftarrow=← leftrightarrow=↔ Rightarrow=⇒ implies=⟹ Leftarrow=⇐ Leftrightarrow=⇔ iff=⟺ mapsto=↦
  longrightarrow=⟶ uparrow=↑ downarrow=↓ ldots=… dots=… cdots=⋯ vdots=⋮ ddots=⋱ prime=′ therefore=∴ because=∵ colon=:
  langle=⟨ rangle=⟩ lfloor=⌊ rfloor=⌋ lceil=⌈ rceil=⌉ lvert=| rvert=| vert=| lVert=‖ rVert=‖ Vert=‖ backslash=\\
`);

/** Large operators, whose limits stand below and above in a formula of its own line. */
export const LARGE = pairs(`
  sum=∑ prod=∏ coprod=∐ bigcup=⋃ bigcap=⋂ bigoplus=⨁ bigotimes=⨂ int=∫ iint=∬ iiint=∭ oint=∮
`);

/** Functions, which are written upright. */
export const FUNCTIONS = new Set(words(`
  sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh log ln lg exp det dim ker deg gcd arg hom Pr lim max min sup inf
  limsup liminf argmax argmin softmax
`));
/** Those of them with a limit below. */
export const LIMITED = new Set(words("lim max min sup inf limsup liminf argmax argmin det gcd Pr"));

/** Marks above one thing. */
export const ACCENTS = pairs("hat=^ widehat=^ bar=¯ overline=¯ vec=→ dot=˙ ddot=¨ tilde=~ widetilde=~");

/** Spaces, in em. */
export const SPACES = { ",": 0.17, ":": 0.22, ";": 0.28, " ": 0.25, "!": 0, quad: 1, qquad: 2 };

/** Alphabets, as MathML's `mathvariant`. */
export const ALPHABETS = {
  mathrm: "normal", operatorname: "normal", mathbf: "bold", boldsymbol: "bold", mathbb: "double-struck", mathcal: "script",
  mathscr: "script", mathfrak: "fraktur", mathsf: "sans-serif", mathtt: "monospace", mathit: "italic",
};

/** What the environments of a matrix stand between. */
export const FENCES = {
  matrix: ["", ""], pmatrix: ["(", ")"], bmatrix: ["[", "]"], Bmatrix: ["{", "}"], vmatrix: ["|", "|"], Vmatrix: ["‖", "‖"],
  cases: ["{", ""], aligned: ["", ""], "aligned*": ["", ""], align: ["", ""], "align*": ["", ""], array: ["", ""],
  gathered: ["", ""], split: ["", ""], equation: ["", ""], "equation*": ["", ""],
};
