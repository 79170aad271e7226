# Homebrew's formula of the plugin. dev/plugin/pack.sh fills in version, url and sha256.
class KubectlLethe < Formula
  desc "Revert, replay and erase batches of Iceberg tables with kubectl"
  homepage "https://github.com/lethe-lake/lethe"
  url "{{ uri }}"
  version "{{ version }}"
  sha256 "{{ sha256 }}"
  license "Apache-2.0"

  depends_on "python@3.13"

  def install
    libexec.install Dir["*"]
    python = Formula["python@3.13"].opt_bin/"python3.13"
    (bin/"kubectl-lethe").write_env_script libexec/"kubectl-lethe", LETHE_PYTHON: python
  end

  def caveats
    <<~EOS
      The first call of `kubectl lethe` installs its packages with pip into ~/.local/share/lethe.
    EOS
  end

  test do
    assert_match "Usage", shell_output("#{bin}/kubectl-lethe --help")
  end
end
